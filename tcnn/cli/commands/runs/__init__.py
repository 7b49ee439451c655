"""Commands that train on images, measure, predict and look inside, one a file."""
