"""The algorithm "Fill gaps": it calls ``geonp fill`` and shows its messages."""

import os
import subprocess

from qgis.core import (
    QgsProcessingAlgorithm,
    QgsProcessingException,
    QgsProcessingParameterBoolean,
    QgsProcessingParameterNumber,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterRasterLayer,
    QgsProcessingParameterString,
)


class Fill(QgsProcessingAlgorithm):
    """Fill the gaps of a raster layer."""

    def name(self):
        """Identifier."""
        return "fill"

    def displayName(self):  # noqa: N802
        """Name in the toolbox."""
        return "Fill gaps"

    def shortHelpString(self):  # noqa: N802
        """Text beside the parameters."""
        return (
            "Fills missing cells with a pretrained model. Observed cells do not change. Without 'Only values', the "
            "output has three bands for each of the input: values, standard errors and flags (0 observed, 1 filled). "
            "Needs the command geonp; the variable GEONP names it if it is not on the PATH."
        )

    def createInstance(self):  # noqa: N802
        """A new algorithm."""
        return Fill()

    def initAlgorithm(self, config=None):  # noqa: N802
        """Declare the parameters."""
        self.addParameter(QgsProcessingParameterRasterLayer("INPUT", "Raster with gaps"))
        self.addParameter(QgsProcessingParameterBoolean("VALUES_ONLY", "Only values, stored as in the input", False))
        distance = {"type": QgsProcessingParameterNumber.Double, "minValue": 0, "optional": True}
        self.addParameter(QgsProcessingParameterNumber("MAX_DISTANCE", "Largest distance to data (cells)", **distance))
        self.addParameter(QgsProcessingParameterString("BOUNDS", "Bounds of the values, such as 0,", "", optional=True))
        self.addParameter(QgsProcessingParameterString("OPTIONS", "More options of geonp fill", "", optional=True))
        self.addParameter(QgsProcessingParameterRasterDestination("OUTPUT", "Filled"))

    def processAlgorithm(self, parameters, context, feedback):  # noqa: N802
        """Run the command; its lines are shown as they come."""
        source = self.parameterAsRasterLayer(parameters, "INPUT", context).source()
        target = self.parameterAsOutputLayer(parameters, "OUTPUT", context)
        distance = parameters.get("MAX_DISTANCE")
        words = [os.environ.get("GEONP", "geonp"), "fill", source, target, "--overwrite", "--no-progress"]
        words += ["--values-only"] * self.parameterAsBool(parameters, "VALUES_ONLY", context)
        words += [] if distance is None else ["--max-distance", str(distance)]
        bounds = self.parameterAsString(parameters, "BOUNDS", context)
        words += ["--bounds", bounds] if bounds else []
        words += self.parameterAsString(parameters, "OPTIONS", context).split()
        feedback.pushInfo(" ".join(words))
        self.call(words, feedback)
        return {"OUTPUT": target}

    def call(self, words, feedback):
        # the variables of QGIS's own Python would reach the Python of geonp
        environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        try:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            )
        except OSError as error:
            raise QgsProcessingException(
                f"The command {words[0]!r} cannot be started ({error}). Install geonp, and set the variable GEONP to "
                "the path of its command."
            ) from error
        lines = []
        with process:
            for line in process.stdout:
                lines.append(line.rstrip())
                feedback.pushInfo(lines[-1])
                if feedback.isCanceled():
                    process.terminate()
        if process.returncode and not feedback.isCanceled():
            raise QgsProcessingException("\n".join(lines[-5:]))
