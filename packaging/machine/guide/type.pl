# Types the commands of a page of the guide on a whole machine, in step with the other machine of the page:
# `type.pl PAGE NAME OTHER OWN_ADDRESS OTHER_ADDRESS`. The first lines of the page's blocks are those that
# cli/tests/network/guide/page.rs describes; here nothing is left out. The machines agree after each block over UDP at the
# addresses, which are on a network of their own.
use strict;
use warnings;
use IO::Socket::INET;

my ($page, $name, $other, $own_address, $other_address) = @ARGV;
$| = 1;
$ENV{HOME} = '/root';
chdir '/root' or die $!;
my $socket = IO::Socket::INET->new(Proto => 'udp', LocalAddr => $own_address, LocalPort => 7, PeerAddr => $other_address, PeerPort => 7) or die $!;
my (@background, $output, $newest_apart);

# Waits until the other machine has finished a step, too.
sub agree {
    my ($step) = @_;
    my ($heard, $answered) = (0, 0);
    for (my $tries = 0; $tries < 6000; $tries++) {
        $socket->send("$step $heard");
        my $bits = '';
        vec($bits, fileno $socket, 1) = 1;
        if (select($bits, undef, undef, 0.1)) {
            my $text;
            if (defined $socket->recv($text, 100)) {
                my ($of, $has_heard) = split ' ', $text;
                # A later step shows that the other machine has heard of this one.
                return if $of > $step;
                if ($of == $step) {
                    $heard = 1;
                    $answered = 1 if $has_heard;
                }
            }
            select undef, undef, undef, 0.02;
        }
        if ($heard && $answered) {
            $socket->send("$step 1") for 1 .. 3;
            return;
        }
    }
    die "the other machine does not finish step $step\n";
}

sub start {
    my ($text, $number) = @_;
    $output = "/root/output-$number";
    my $pid = fork;
    if (!$pid) {
        open STDIN, '<', '/dev/null';
        open STDOUT, '>', $output or die $!;
        open STDERR, '>&', \*STDOUT;
        setpgrp;
        exec 'sh', '-ec', $text;
    }
    return $pid;
}

sub printed {
    open my $file, '<', $output or return '';
    local $/;
    return <$file> // '';
}

sub end_background {
    for my $pid (reverse @background) {
        kill INT => -$pid;
        waitpid $pid, 0;
    }
    @background = ();
}

open my $file, '<', $page or die "$page: $!";
my @lines = <$file>;
chomp @lines;
my $step = 0;
for (my $at = 0; $at < @lines; $at++) {
    my ($info) = $lines[$at] =~ /^```(\S+ \S.*)$/ or next;
    my $line = $at + 1;
    my $text = '';
    $text .= "$lines[$at]\n" while $lines[++$at] ne '```';
    my ($language, $machine, @how) = split ' ', $info;
    $step++;
    if ($machine eq $name || $machine eq 'both') {
        my $how = $how[0] // '';
        print "-- $page:$line $info\n$text";
        if ($language eq 'text') {
            if ($newest_apart) {
                waitpid pop @background, 0;
                $newest_apart = 0;
            }
            my @printed = split /\n/, printed;
            for my $expected (split /\n/, $text) {
                my $pattern = join '.*', map { quotemeta } split /\*/, $expected, -1;
                shift @printed while @printed && $printed[0] !~ /^$pattern$/;
                die "line $line: no '$expected' in\n" . printed if !@printed;
            }
        } elsif ($language ne 'sh') {
            open my $written, '>', $how or die "$how: $!";
            print $written $text;
            close $written;
        } else {
            end_background if $how eq 'end';
            $newest_apart = $how eq 'background';
            my $pid = start $text, $step;
            if ($newest_apart) {
                push @background, $pid;
                # The time that a reader needs for the next command, and that this machine needs.
                sleep 15;
            } else {
                waitpid $pid, 0;
                my $code = $? >> 8;
                print printed;
                die "line $line: exit code $code\n" if $code;
            }
        }
    }
    agree $step;
}
end_background;
agree $step + 1;
