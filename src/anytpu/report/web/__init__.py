"""Pages: markup in which nothing of a user's can be markup, tables, and the frame that all pages share."""
