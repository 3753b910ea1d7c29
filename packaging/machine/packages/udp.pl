# Numbered packets over UDP: `udp.pl send FROM TO PORT RATE` sends at most RATE packets a second, `udp.pl receive ON PORT` counts what is
# missing. SIGINT ends both.
use strict;
use warnings;
use IO::Socket::INET;

my $ends = 0;
$SIG{INT} = sub { $ends = 1 };
$| = 1;
my $what = shift;
if ($what eq 'send') {
    my ($from, $to, $port, $rate) = @ARGV;
    my $socket = IO::Socket::INET->new(Proto => 'udp', LocalAddr => $from, PeerAddr => $to, PeerPort => $port) or die $!;
    for (my $number = 1; !$ends; $number++) {
        $socket->send(pack('N', $number) . 'x' x 500);
        select undef, undef, undef, 1 / $rate;
    }
} else {
    my ($on, $port) = @ARGV;
    my $socket = IO::Socket::INET->new(Proto => 'udp', LocalAddr => $on, LocalPort => $port) or die $!;
    my ($first, $last, $received, $twice, %seen) = (0, 0, 0, 0);
    while (!$ends) {
        my $packet;
        defined $socket->recv($packet, 2000) or next;
        my $number = unpack 'N', $packet;
        if (!$first) { $first = $number; print "first $first\n"; }
        if ($seen{$number}++) { $twice++; next; }
        $received++;
        $last = $number if $number > $last;
    }
    printf "lost %d of %d, %d twice\n", $last - $first + 1 - $received, $last - $first + 1, $twice;
}
