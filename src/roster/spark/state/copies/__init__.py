"""Work on stores outside batches: restoring, standby copies, cleaning, locations."""
