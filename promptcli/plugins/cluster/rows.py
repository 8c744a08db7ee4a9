"""Rows of this plug-in in the tables of engines and of data sets; Ray is imported on use."""

from promptcli.plugins.cluster.ray_engine import RayDataSets, RayEngine

ENGINE = RayEngine()
DATA_SETS = RayDataSets()
