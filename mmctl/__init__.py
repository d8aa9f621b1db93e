"""mmctl: the reference laboratory for Memory Mosaics. Importing it imports neither torch nor mlflow."""

__version__ = "0.1.0"
