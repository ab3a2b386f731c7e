"""Records of a Fetch response as Arrow columns: compiled loops (`kernel`) and what surrounds them (`reader`)."""
