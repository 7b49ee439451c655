"""Networks of the papers that timm does not have, in timm's registry under names of their own."""
