"""A server that never forgets a request: the list keeps each of them."""

kept = []


def remember(number):
    kept.append("/orders/%d" % number + "x" * 100)  # the leak


for number in range(600000):
    remember(number)
print(len(kept))
