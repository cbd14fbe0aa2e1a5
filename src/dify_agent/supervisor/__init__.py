"""The supervisor: owns the nursery in which services and run actors live, and hands out the handle that HTTP holds."""
