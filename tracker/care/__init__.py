"""What keeps an index sound: dropping what nobody needs, damage, older formats, checks."""
