"""`roster demo --stateful`: two PySpark applications keep totals and windows, one dies, its standby copies go on."""
