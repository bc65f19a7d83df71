"""The tests of the queue; they mirror the rooms of the house."""
