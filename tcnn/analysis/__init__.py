"""Inspection of attention: maps, measures of every head, plots, and reports as pages."""
