"""What devices hold: examples, in memory or loaded on demand, and how to deal them."""
