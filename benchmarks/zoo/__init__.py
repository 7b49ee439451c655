"""Every model of timm: converted and verified, and the page that says so."""
