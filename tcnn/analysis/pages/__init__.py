"""Reports as one self-contained HTML file: of a run, and of why two models differ."""
