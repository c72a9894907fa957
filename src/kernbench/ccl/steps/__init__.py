"""What collective algorithms are made of: messages, whose data are where, rounds of a ring, trees."""
