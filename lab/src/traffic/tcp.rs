use super::ledger::Ledger;
use super::pace::Pace;
use super::{Sent, Stream, payload};
use crate::topology::Stop;
use anyhow::Result;
use hawser_io::sockopt::tcp_retransmissions;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long a connection may go without an answer before the sender gives up.
const PATIENCE: Duration = Duration::from_secs(30);

const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(super) struct Sender {
    id: u16,
    socket: Socket,
    to: SocketAddr,
}

impl Sender {
    pub(super) fn open(id: u16, receiver: &Receiver) -> Result<Self> {
        let to = receiver.listener.local_addr()?;
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_user_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(PATIENCE))?;
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

    /// Returns once the receiver has read everything.
    fn send_records(&self, stream: &Stream, stop: &Stop, sent: &mut u64) -> io::Result<()> {
        self.socket.connect_timeout(&self.to.into(), PATIENCE)?;
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
                "the receiver has nothing to say, but it did",
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

    /// Reads until the sender ends the connection; when it cannot, until nothing came for `grace`.
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
        let mut quiet_since = Instant::now();
        loop {
            match connection.read(&mut chunk) {
                // What a broken connection did not bring is missing, and the sender knows why.
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Ok(length) => {
                    unread.extend_from_slice(&chunk[..length]);
                    let records = unread.chunks_exact(stream.payload_bytes);
                    let left = records.remainder().len();
                    records.for_each(|record| ledger.record(payload::sequence(record, self.id)));
                    unread.drain(..unread.len() - left);
                    quiet_since = Instant::now();
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            if sender_is_done() && quiet_since.elapsed() > grace {
                return Ok(());
            }
        }
    }

    /// The sender's connection; none when it gave up before it had one.
    fn accept(&self, sender_is_done: &dyn Fn() -> bool) -> io::Result<Option<TcpStream>> {
        loop {
            match self.listener.accept() {
                Ok((connection, _)) => {
                    connection.set_nonblocking(false)?;
                    connection.set_read_timeout(Some(LOOK_AGAIN))?;
                    return Ok(Some(connection));
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if sender_is_done() => return Ok(None),
                Err(_) => thread::sleep(LOOK_AGAIN),
            }
        }
    }
}
