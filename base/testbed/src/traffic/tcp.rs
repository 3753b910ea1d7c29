use super::ledger::Ledger;
use super::pace::Pace;
use super::{Sent, Stream, or_timeout, payload};
use crate::topology::Stop;
use anyhow::Result;
use hawser_io::sockopt::tcp_retransmissions;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum time that a connection may go without a response before the sender gives up.
const TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Sender {
    id: u16,
    socket: Socket,
    to: SocketAddr,
}

impl Sender {
    pub(super) fn open(id: u16, receiver: &Receiver) -> Result<Self> {
        let to = receiver.listener.local_addr()?;
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_user_timeout(Some(TIMEOUT))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(Sender { id, socket, to })
    }

    pub(super) fn send(&self, stream: &Stream, stop: &Stop) -> Sent {
        let mut packets = 0;
        let error = self.send_records(stream, stop, &mut packets).err();
        Sent {
            packets,
            retransmissions: tcp_retransmissions(&self.socket).ok(),
            error,
        }
    }

    /// Sends the records and waits until the receiver has read all of them.
    fn send_records(&self, stream: &Stream, stop: &Stop, sent: &mut u64) -> io::Result<()> {
        self.socket.connect_timeout(&self.to.into(), TIMEOUT)?;
        let mut pace = Pace::new(stream.rate_pps, 1);
        let mut buffer = Vec::new();
        while *sent < stream.packets && !stop.requested() {
            let end = stream.packets.min(*sent + u64::from(pace.batch()));
            buffer.clear();
            (*sent..end).for_each(|sequence| {
                payload::append(&mut buffer, self.id, sequence, stream.payload_bytes)
            });
            (&self.socket).write_all(&buffer)?;
            *sent = end;
        }
        self.socket.shutdown(Shutdown::Write)?;
        match (&self.socket).read(&mut [0])? {
            0 => Ok(()),
            _ => Err(io::Error::new(
                ErrorKind::InvalidData,
                "the receiver sent data, although it should not",
            )),
        }
    }
}

pub(super) struct Receiver {
    id: u16,
    listener: TcpListener,
}

impl Receiver {
    pub(super) fn bind(id: u16, address: IpAddr) -> Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Receiver { id, listener })
    }

    /// Reads until the sender closes the connection, or, if it cannot, until no data arrived for
    /// `grace`.
    pub(super) fn receive(
        &self,
        stream: &Stream,
        ledger: &mut Ledger,
        grace: Duration,
        sender_is_done: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let Some(mut connection) = self.accept(sender_is_done)? else {
            return Ok(());
        };
        let mut chunk = [0; 1 << 16];
        let mut unread = Vec::new();
        let mut idle_since = Instant::now();
        loop {
            match or_timeout(connection.read(&mut chunk)) {
                // Records lost with a broken connection count as missing; the sender reports the
                // error.
                Ok(Some(0)) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Ok(Some(length)) => {
                    unread.extend_from_slice(&chunk[..length]);
                    self.take_records(&mut unread, stream.payload_bytes, ledger);
                    idle_since = Instant::now();
                }
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            if sender_is_done() && idle_since.elapsed() > grace {
                return Ok(());
            }
        }
    }

    /// Records the complete records of the unread data and removes them from it.
    fn take_records(&self, unread: &mut Vec<u8>, record_bytes: usize, ledger: &mut Ledger) {
        let records = unread.chunks_exact(record_bytes);
        let left = records.remainder().len();
        records.for_each(|record| ledger.record(payload::sequence(record, self.id)));
        unread.drain(..unread.len() - left);
    }

    /// Accepts the sender's connection. Returns `None` if the sender gave up before it was
    /// connected.
    fn accept(&self, sender_is_done: &dyn Fn() -> bool) -> io::Result<Option<TcpStream>> {
        loop {
            match self.listener.accept() {
                Ok((connection, _)) => {
                    connection.set_nonblocking(false)?;
                    connection.set_read_timeout(Some(POLL_INTERVAL))?;
                    return Ok(Some(connection));
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if sender_is_done() => return Ok(None),
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        }
    }
}
