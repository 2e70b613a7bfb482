"""The command line: one small file a verb. Verbs parse, call the library and print; they do nothing themselves."""
