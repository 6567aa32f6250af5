"""Numbers with their nouns, for messages."""


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular or the plural.

    Example:
        >>> count_noun(1, "round"), count_noun(3, "full run")
        ('1 round', '3 full runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def there_are(number: int, noun: str) -> str:
    """Return a clause with a number of things.

    Example:
        >>> there_are(1, "device"), there_are(0, "device")
        ('there is 1 device', 'there are 0 devices')
    """
    return f"there {'is' if number == 1 else 'are'} {count_noun(number, noun)}"
