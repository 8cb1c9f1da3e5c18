"""Container engines, and processes without one: one file and one class of `Runtime` each."""
