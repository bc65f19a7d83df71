"""Speed and scale, measured beside other queues: ``make bench``. pytest collects nothing here."""
