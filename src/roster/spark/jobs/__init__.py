"""What asks Spark for a job: batches as jobs, small ones without, probes for a slot."""
