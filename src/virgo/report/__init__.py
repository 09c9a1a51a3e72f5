"""Text tables, pictures, pages and files of results; knows no model."""
