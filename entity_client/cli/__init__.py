"""The `entity` command: the library's calls as commands, with the conventions of the public interface."""
