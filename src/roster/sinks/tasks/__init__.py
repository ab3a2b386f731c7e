"""Writers inside the reading tasks: rows go from Arrow to their target without crossing into the JVM."""
