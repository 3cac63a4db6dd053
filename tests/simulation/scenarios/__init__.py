"""What the simulation found, each as the shortest schedule that shows it."""
