"""Charts of the pages and the reports: one drawing, one palette, in modules of JavaScript that import nothing else"""
