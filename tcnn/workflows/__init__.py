"""From a name or a file to a verified file: what commands and jobs do."""
