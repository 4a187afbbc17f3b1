# Hashes, arrays, strings and regular expressions, as ordinary scripts use them.
use strict;
use warnings;

my (%count, %lines);
for my $number (0 .. 55000) {
    my $line = join ' ', map { 'w' . ($number * $_ % 20011) } 1 .. 8;
    push @{ $lines{ length $line } }, $line;
    $count{$_}++ for split / /, $line;
}
my $long = join "\n", map { @{ $lines{$_} } } sort { $a <=> $b } keys %lines;
my $found = () = $long =~ /w\d*7 w1/g;
(my $changed = $long) =~ s/w(\d)/<$1>/g;
my @best = (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count)[0 .. 4];
print length($long), ' ', length($changed), " $found @best\n";
