"""QGIS plugin: geonp as a provider of Processing."""


def classFactory(iface):  # noqa: N802 (the name that QGIS calls)
    """The plugin."""
    from .plugin import Plugin

    return Plugin()
