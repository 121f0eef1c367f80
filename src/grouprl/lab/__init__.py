"""The run directory: written by `record`, read by `read`, shown by `plots` and `report`."""
