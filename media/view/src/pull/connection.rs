use super::Config;
use super::recorder::{Delivery, Recorder};
use crate::until::Until;
use hawser_codec::pull::{FrameHeader, HEADER_BYTES, PullError, REQUEST};
use hawser_codec::{DecodeError, ZstdDecoder};
use hawser_io::clock::unix_ns;
use hawser_io::peer;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval at which a viewer that receives no data checks whether it should stop.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
/// A publisher that sends no acknowledgement for this long is considered dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// The time without the first frame after which the log says what is waited for.
const SAY_AFTER: Duration = Duration::from_secs(3);
/// A publisher that sends nothing of what is requested for this long is asked in another connection. The slowest one
/// sends a frame every 10 s.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// A connection to a publisher.
pub(crate) struct Connection {
    stream: TcpStream,
    in_flight: usize,
    /// The send times of the outstanding requests, oldest first. Frames arrive in the order of the
    /// requests.
    requested_ns: VecDeque<u64>,
    decoder: ZstdDecoder,
    last_frame: Option<u64>,
    /// When something was received last.
    heard: Instant,
    /// Whether the log says that nothing is received.
    has_said: bool,
}

/// The reason that a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The viewer should stop.
    Stopped,
    /// The publisher cannot be reached, or the connection was lost.
    Lost(io::Error),
    /// The publisher violated the protocol.
    Protocol(ProtocolError),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error(transparent)]
    Message(#[from] PullError),
    #[error("frame {number}: {error}")]
    Cloud { number: u64, error: DecodeError },
    #[error("frame {number} arrived after frame {last}")]
    Order { number: u64, last: u64 },
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Ended::Lost(error)
    }
}

impl From<ProtocolError> for Ended {
    fn from(error: ProtocolError) -> Self {
        Ended::Protocol(error)
    }
}

impl Connection {
    pub(crate) fn open(config: &Config) -> io::Result<Self> {
        let protocol = if config.mptcp {
            Protocol::MPTCP
        } else {
            Protocol::TCP
        };
        let socket = connect(&config.address, protocol)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(DEAD_AFTER / 3)
                .with_interval(DEAD_AFTER / 3),
        )?;
        if !config.mptcp {
            // MPTCP has no such option: the subflows to a dead publisher time out one by one.
            socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
        }
        let requested_ns = VecDeque::with_capacity(config.in_flight);
        Ok(Connection {
            stream: socket.into(),
            in_flight: config.in_flight,
            requested_ns,
            decoder: ZstdDecoder::new(),
            last_frame: None,
            heard: Instant::now(),
            has_said: false,
        })
    }

    /// Receives frames until the connection ends. Returns the reason.
    pub(crate) fn watch(&mut self, recorder: &mut Recorder, until: &Until<'_>) -> Ended {
        let Err(ended) = self.receive_frames(recorder, until);
        ended
    }

    fn receive_frames(
        &mut self,
        recorder: &mut Recorder,
        until: &Until<'_>,
    ) -> Result<Infallible, Ended> {
        let mut encoded = Vec::new();
        self.request(self.in_flight)?;
        loop {
            let header = self.receive_header(recorder, until)?;
            encoded.resize(header.length as usize, 0);
            self.fill(&mut encoded, recorder, until)?;
            let received_ns = unix_ns();
            let requested_ns = self
                .requested_ns
                .pop_front()
                .expect("at least one request is outstanding");
            // The next request is sent before this frame is decoded. If that fails, this frame has
            // been received nevertheless.
            let next_request = self.request(1);

            let number = header.number;
            let cloud = self
                .decoder
                .decompress(header.points as usize, &encoded)
                .map_err(|error| ProtocolError::Cloud { number, error })?;
            let decoded_ns = unix_ns();
            let delivery = Delivery {
                header,
                cloud: &cloud,
                requested_ns,
                received_ns,
                decoded_ns,
            };
            recorder.record_frame(&delivery);
            if recorder.is_full() {
                return Err(Ended::Stopped);
            }
            next_request?;
        }
    }

    fn receive_header(
        &mut self,
        recorder: &mut Recorder,
        until: &Until<'_>,
    ) -> Result<FrameHeader, Ended> {
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header, recorder, until)?;
        let header = FrameHeader::parse(&header).map_err(ProtocolError::from)?;
        Ok(self.check_order(header)?)
    }

    fn request(&mut self, frames: usize) -> io::Result<()> {
        self.requested_ns
            .extend(std::iter::repeat_n(unix_ns(), frames));
        self.stream.write_all(&REQUEST.repeat(frames))
    }

    fn check_order(&mut self, header: FrameHeader) -> Result<FrameHeader, ProtocolError> {
        let number = header.number;
        match self.last_frame.replace(number) {
            Some(last) if number <= last => Err(ProtocolError::Order { number, last }),
            _ => Ok(header),
        }
    }

    /// Fills the buffer.
    fn fill(
        &mut self,
        buffer: &mut [u8],
        recorder: &mut Recorder,
        until: &Until<'_>,
    ) -> Result<(), Ended> {
        let mut filled = 0;
        while filled < buffer.len() {
            if until.should_stop() {
                return Err(Ended::Stopped);
            }
            recorder.report(&self.stream);
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => {
                    return Err(Ended::Lost(io::Error::other(
                        "the publisher closed the connection",
                    )));
                }
                Ok(bytes) => {
                    recorder.record_read(bytes);
                    self.heard = Instant::now();
                    filled += bytes;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    self.check_silence()?;
                }
                Err(error) => return Err(Ended::Lost(error)),
            }
        }
        Ok(())
    }

    /// Says what is waited for, and ends the connection after a long silence.
    fn check_silence(&mut self) -> io::Result<()> {
        let (silence, limit) = (self.heard.elapsed(), SILENT_AFTER.as_secs());
        if silence >= SILENT_AFTER {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the publisher has sent nothing for {limit} s"),
            ));
        }
        if silence >= SAY_AFTER && self.last_frame.is_none() && !self.has_said {
            self.has_said = true;
            tracing::warn!(
                "the publisher has accepted the connection, and sends no frame: is it one of `hawser serve`, and not of `hawser publish`? \
                 Waiting up to {limit} s for the first frame, then connecting again"
            );
        }
        Ok(())
    }
}

fn connect(address: &str, protocol: Protocol) -> io::Result<Socket> {
    let mut failure = io::Error::other("the host name has no address");
    for address in peer::resolve(address)? {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
        match socket.connect_timeout(&address.into(), CONNECT_TIMEOUT) {
            Ok(()) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
