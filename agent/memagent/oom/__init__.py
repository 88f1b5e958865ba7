"""What is recorded and reported when an allocation fails."""
