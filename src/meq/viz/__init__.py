"""Figures, the HTML report and the web page, made from the files of runs and studies."""
