"""State exported, imported, moved, migrated and seeded, by Spark jobs that run once."""
