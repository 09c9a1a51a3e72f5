"""Pictures and pages of what the diagnostics found."""
