"""The plugin and its provider, which hold one algorithm."""

from qgis.core import QgsApplication, QgsProcessingProvider

from .fill import Fill


class Provider(QgsProcessingProvider):
    """The group geonp in the toolbox."""

    def loadAlgorithms(self):  # noqa: N802
        """Add the algorithm."""
        self.addAlgorithm(Fill())

    def id(self):
        """Identifier."""
        return "geonp"

    def name(self):
        """Name in the toolbox."""
        return "geonp"


class Plugin:
    """What QGIS loads, with and without windows."""

    def __init__(self):
        self.provider = None

    def initProcessing(self):  # noqa: N802
        """Register the provider; qgis_process calls this alone."""
        self.provider = Provider()
        QgsApplication.processingRegistry().addProvider(self.provider)

    def initGui(self):  # noqa: N802
        """Register the provider."""
        self.initProcessing()

    def unload(self):
        """Remove the provider."""
        QgsApplication.processingRegistry().removeProvider(self.provider)
