"""Tests of the house itself: who may import whom, what is public, and that every promise has a test."""
