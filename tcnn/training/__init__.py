"""Training: today the demo's plain loop on scikit-learn's digits."""
