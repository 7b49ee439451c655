"""Inspection and reports: attention maps, measures of every head, plots, the HTML report of a run."""
