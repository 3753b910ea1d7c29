use super::{case, median, median_ratio};
use crate::programs::certificates;
use crate::programs::tunnel::{
    DEVICE, INNER, SERVER, TIMEOUT, TunnelProcesses, wait_for, wait_for_route,
};
use crate::summary::Summary;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use hawser_io::interface;
use hawser_quic::{Congestion, Live, Transport};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::Claim;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use nix::unistd::{SysconfVar, sysconf};
use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq::{
    ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig,
};
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Number of runs of each kind, which alternate.
const ROUNDS: usize = 5;

/// The part at the beginning of a run that is not measured, and the part that is.
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);

const UPLINKS: [usize; 2] = [1, 4];

/// The maximum UDP payload of a path of 1,500 bytes over IPv4.
const UDP_PAYLOAD: u16 = 1472;

/// The bytes that the bare datagrams are copied from, as many as a TCP connection's writes have.
const PAYLOADS: usize = 1 << 17;

/// The server's inner address in wireguard-go's tunnel.
const WIREGUARD_INNER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// Measures the throughput of a tunnel between two namespaces, in comparison with datagrams of the
/// QUIC library and with wireguard-go.
pub(super) fn run(hawser: &Path, summary: &mut Summary) -> Result<()> {
    for uplinks in UPLINKS {
        let network = Pair::create(uplinks)?;
        let (mut ours, mut bare, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        let mut cpu = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            bare.push(network.bare_datagrams()?);
            let (rate, used) = network.hawser(hawser)?;
            ours.push(rate);
            for (all, used) in cpu.iter_mut().zip(used) {
                all.push(used);
            }
            theirs.push(network.wireguard()?);
        }
        let limits = [
            ("mbps", 1500.0),
            ("of_bare_datagrams_ratio", 0.6),
            ("of_wireguard_go_ratio", 1.0),
        ];
        let mut case = case(&format!("tunnel/{uplinks}-uplinks"), &limits);
        case.set_param("uplinks", uplinks);
        case.metrics.set("mbps", median(ours.clone()));
        case.metrics
            .set("bare_datagrams_mbps", median(bare.clone()));
        case.metrics
            .set("wireguard_go_mbps", median(theirs.clone()));
        for (end, used) in ["client", "server"].into_iter().zip(cpu) {
            let name = format!("{end}_cpu_s_per_gbit");
            case.metrics.set(&name, median(used));
        }
        case.metrics
            .set("of_bare_datagrams_ratio", median_ratio(&ours, &bare));
        case.metrics
            .set("of_wireguard_go_ratio", median_ratio(&ours, &theirs));
        summary.cases.push(case);
    }
    Ok(())
}

/// A client and a server, connected by virtual links.
struct Pair {
    client: Namespace,
    server: Namespace,
    uplinks: usize,
    folder: TempDir,
    /// Removes the namespaces.
    _claim: Claim,
}

impl Pair {
    fn create(uplinks: usize) -> Result<Pair> {
        let claim = Claim::new()?;
        let pair = Pair {
            client: claim.namespace("client")?,
            server: claim.namespace("server")?,
            uplinks,
            folder: TempDir::new()?,
            _claim: claim,
        };
        pair.server.ip(&format!("addr add {SERVER}/32 dev lo"))?;
        let there = pair.server.name();
        for uplink in 0..uplinks {
            pair.client.ip(&format!(
                "link add wan{uplink} type veth peer name wan{uplink} netns {there}"
            ))?;
            for (end, own) in [(&pair.client, 1), (&pair.server, 2)] {
                end.ip(&format!(
                    "addr add 10.1.{uplink}.{own}/24 dev wan{uplink}\nlink set wan{uplink} up"
                ))?;
            }
            let metric = 100 + uplink;
            pair.client.ip(&format!(
                "route add default via 10.1.{uplink}.2 dev wan{uplink} metric {metric}"
            ))?;
        }
        certificates::write(pair.folder.path(), &["bench"])?;
        Ok(pair)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Returns the throughput of a TCP connection through Hawser's tunnel in Mb/s, and the processor
    /// time that the processes of client and server use for a gigabit, in seconds.
    fn hawser(&self, binary: &Path) -> Result<(f64, [f64; 2])> {
        let processes = TunnelProcesses::start(
            binary,
            &self.client,
            &self.server,
            self.folder.path(),
            "wan*",
            "",
        )?;
        let [client, server] = processes.ids();
        let cpu = || -> Result<_> { Ok([cpu_time(client)?, cpu_time(server)?]) };
        let (rate, [before, after]) = self
            .tcp(INNER, DEVICE, cpu)
            .map_err(|error| processes.explain(&error))?;
        ensure!(rate > 0.0, "nothing arrived through the tunnel");
        let (before, after) = (before?, after?);
        let gbits = rate * 1e-3 * MEASURED.as_secs_f64();
        let used = [0, 1].map(|end| (after[end] - before[end]) / gbits);
        Ok((rate, used))
    }

    /// Returns the throughput of a TCP connection through wireguard-go, which has one path, in
    /// Mb/s.
    fn wireguard(&self) -> Result<f64> {
        let (client_key, server_key) = (self.key("client.wg")?, self.key("server.wg")?);
        let server = format!("{SERVER}:51820");
        let ends = [
            WireguardEnd {
                namespace: &self.client,
                role: "client",
                own: 2,
                peer: &server_key,
                endpoint: Some(&server),
            },
            WireguardEnd {
                namespace: &self.server,
                role: "server",
                own: 1,
                peer: &client_key,
                endpoint: None,
            },
        ];
        let processes: Vec<Process> = ends
            .iter()
            .map(|end| end.start(self.folder.path()))
            .collect::<Result<_>>()?;
        let rate = self.tcp(WIREGUARD_INNER, &ends[0].device(), || ());
        drop(processes);
        ends.iter().try_for_each(WireguardEnd::clean)?;
        Ok(rate?.0)
    }

    /// Creates a private key in a file and returns the public one.
    fn key(&self, name: &str) -> Result<String> {
        let private = finish(Command::new("wg").arg("genkey"), "")?;
        self.write(name, &private)?;
        Ok(finish(Command::new("wg").arg("pubkey"), &private)?
            .trim()
            .to_owned())
    }

    /// As the function [`tcp`].
    fn tcp<T>(
        &self,
        address: Ipv4Addr,
        device: &str,
        sample: impl Fn() -> T,
    ) -> Result<(f64, [T; 2])> {
        let transfer = Transfer::default();
        tcp(
            &self.client,
            &self.server,
            address,
            device,
            &transfer,
            sample,
        )
    }

    /// Returns the throughput of datagrams of the maximum size over one connection for each uplink
    /// in Mb/s.
    fn bare_datagrams(&self) -> Result<f64> {
        let received = Arc::new(AtomicU64::new(0));
        let server = thread::spawn({
            let (namespace, folder) = (self.server.clone(), self.folder.path().to_owned());
            let received = Arc::clone(&received);
            let uplinks = self.uplinks;
            move || {
                namespace
                    .run(|| runtime()?.block_on(receive_datagrams(&folder, uplinks, &received)))?
            }
        });
        let (namespace, folder) = (self.client.clone(), self.folder.path().to_owned());
        let uplinks = self.uplinks;
        let client = thread::spawn(move || {
            namespace.run(|| runtime()?.block_on(send_datagrams(&folder, uplinks)))?
        });
        let (rate, _) = rate(&received, WARM_UP, MEASURED, || ());
        for end in [client, server] {
            end.join().map_err(|_| {
                anyhow::anyhow!("a thread of the measurement with bare datagrams panicked")
            })??;
        }
        Ok(rate)
    }
}

/// One end of wireguard-go's tunnel.
struct WireguardEnd<'a> {
    namespace: &'a Namespace,
    role: &'static str,
    /// The host part of its inner address.
    own: u8,
    /// The public key of the other end.
    peer: &'a str,
    /// The address of the other end, if this one connects.
    endpoint: Option<&'a str>,
}

impl WireguardEnd<'_> {
    /// Returns the name of the device. The control sockets are in the file system, which both
    /// namespaces share, so the names differ.
    fn device(&self) -> String {
        format!("hawser-wg-{}", &self.role[..1])
    }

    /// Starts the process and configures it. The private key is in `folder`.
    fn start(&self, folder: &Path) -> Result<Process> {
        let device = self.device();
        let mut command = Command::new("wireguard-go");
        command
            .args(["--foreground", &device])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = Process::spawn(self.namespace, command)
            .context("cannot run wireguard-go: install the package wireguard-go")?;
        let mut set = self.namespace.command("wg")?;
        set.args(["set", &device, "listen-port", "51820", "private-key"]);
        set.arg(folder.join(format!("{}.wg", self.role)));
        set.args(["peer", self.peer, "allowed-ips", "0.0.0.0/0"]);
        if let Some(endpoint) = self.endpoint {
            set.args(["endpoint", endpoint]);
        }
        wait_for(|| finish(&mut set, "").ok())?;
        self.namespace.ip(&format!(
            "addr add 10.78.0.{}/24 dev {device}\nlink set {device} mtu 1420 up",
            self.own
        ))?;
        Ok(process)
    }

    /// Waits until the device of a killed process is gone, and removes its control socket, which
    /// remains.
    fn clean(&self) -> Result<()> {
        let device = self.device();
        let gone = || {
            self.namespace
                .run(|| interface::index(&device))
                .ok()?
                .is_none()
                .then_some(())
        };
        wait_for(gone)?;
        let _ = fs::remove_file(format!("/var/run/wireguard/{device}.sock"));
        Ok(())
    }
}

/// The parameters of the measurement of a TCP connection.
pub(super) struct Transfer {
    /// Congestion control; the system's default if `None`.
    pub(super) congestion: Option<&'static str>,
    /// The part at the beginning that is not measured.
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
}

impl Default for Transfer {
    fn default() -> Self {
        Transfer {
            congestion: None,
            warm_up: WARM_UP,
            measured: MEASURED,
        }
    }
}

/// Returns the throughput in Mb/s of a TCP connection to an address of the server via a device of
/// the client, and what `sample` returns at the beginning and at the end of the measured time.
pub(super) fn tcp<T>(
    client: &Namespace,
    server: &Namespace,
    address: Ipv4Addr,
    device: &str,
    transfer: &Transfer,
    sample: impl Fn() -> T,
) -> Result<(f64, [T; 2])> {
    wait_for_route(client, address, device)?;
    let listener = wait_for(|| server.run(|| TcpListener::bind((address, 0))).ok()?.ok())?;
    let target = listener.local_addr()?;
    let connect = || TcpStream::connect_timeout(&target, Duration::from_secs(1)).ok();
    let mut stream = wait_for(|| client.run(connect).ok().flatten())?;
    if let Some(congestion) = transfer.congestion {
        // Set for this connection only: the values that a namespace may set depend on the machine.
        setsockopt(&stream, TcpCongestion, &congestion.into()).with_context(|| {
            format!("the kernel does not support the congestion control {congestion:?}")
        })?;
    }
    let received = receive(listener);
    let sending = stream.try_clone()?;
    thread::spawn(move || while stream.write_all(&[0x5a; 1 << 17]).is_ok() {});
    let measured = rate(&received, transfer.warm_up, transfer.measured, sample);
    // The next tunnel has the same addresses and would carry the remaining packets of this
    // connection.
    sending.shutdown(Shutdown::Both)?;
    Ok(measured)
}

/// Accepts a connection and reads it to its end. Returns the number of bytes, which grows.
fn receive(listener: TcpListener) -> Arc<AtomicU64> {
    let received = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&received);
    thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else {
            return;
        };
        let mut buffer = vec![0; 1 << 17];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            counted.fetch_add(length as u64, Relaxed);
        }
    });
    received
}

/// Returns the rate in Mb/s at which a number of bytes grows in the measured time, and what `sample`
/// returns at its beginning and at its end.
fn rate<T>(
    received: &AtomicU64,
    warm_up: Duration,
    measured: Duration,
    sample: impl Fn() -> T,
) -> (f64, [T; 2]) {
    let start = Instant::now();
    while received.load(Relaxed) == 0 && start.elapsed() < TIMEOUT {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(warm_up);
    let (first, before, from) = (sample(), received.load(Relaxed), Instant::now());
    thread::sleep(measured);
    let (bytes, took) = (received.load(Relaxed) - before, from.elapsed());
    (bytes as f64 * 8e-6 / took.as_secs_f64(), [first, sample()])
}

/// Returns the processor time that a process has used in the user's mode and in the kernel's, with
/// that of threads that have ended, in seconds.
fn cpu_time(process: u32) -> Result<f64> {
    let file = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    // The name of the program, in parentheses, may contain spaces.
    let (_, fields) = text.rsplit_once(')').context("no name")?;
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = times
        .map(|time| Ok(time.parse::<u64>()?))
        .sum::<Result<_>>()?;
    let ticks_a_second =
        sysconf(SysconfVar::CLK_TCK)?.context("the system does not tell its ticks")?;
    Ok(ticks as f64 / ticks_a_second as f64)
}

fn finish(command: &mut Command, input: &str) -> Result<String> {
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child =
        spawned.with_context(|| format!("cannot run {command:?}: install wireguard-tools"))?;
    child
        .stdin
        .take()
        .context("stdin is piped")?
        .write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns a runtime with the same number of threads as the tunnel's. With more it is slower.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let threads = thread::available_parallelism()?.get().div_ceil(2);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
}

fn transport() -> Result<Arc<TransportConfig>> {
    let transport = Transport {
        udp_payload: UDP_PAYLOAD,
        ..Transport::default()
    };
    Ok(Arc::new(
        transport.config(Congestion::bbr(Arc::new(Live::new(|| {})), 1))?,
    ))
}

fn tls(folder: &Path) -> Result<(Arc<QuicClientConfig>, Arc<QuicServerConfig>)> {
    let read = |name: &str| fs::read_to_string(folder.join(name));
    let authorities = hawser_quic::tls::authorities(&read("authority.pem")?)?;
    let identity = hawser_quic::tls::Identity::from_pem(&read("bench.pem")?, &read("bench.key")?)?;
    let client = hawser_quic::tls::client(Arc::clone(&authorities), &identity, b"bench")?;
    Ok((
        client,
        hawser_quic::tls::server(authorities, &identity, b"bench")?,
    ))
}

const PORT: u16 = 14753;

async fn receive_datagrams(folder: &Path, uplinks: usize, received: &Arc<AtomicU64>) -> Result<()> {
    let mut config = ServerConfig::with_crypto(tls(folder)?.1);
    config.transport_config(transport()?);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let endpoint = Endpoint::new(
        EndpointConfig::default(),
        Some(config),
        socket,
        Arc::new(TokioRuntime),
    )?;
    let mut readers = Vec::new();
    for _ in 0..uplinks {
        let connection = endpoint
            .accept()
            .await
            .context("the endpoint is open")?
            .await?;
        readers.push(tokio::spawn(count(connection, Arc::clone(received))));
    }
    for reader in readers {
        reader.await?;
    }
    Ok(())
}

/// Counts the bytes of a connection's datagrams until it ends.
async fn count(connection: Connection, received: Arc<AtomicU64>) {
    let mut room = vec![Bytes::new(); 64];
    while let Ok(count) = connection.read_many_datagrams(&mut room).await {
        let bytes: usize = room[..count].iter().map(Bytes::len).sum();
        received.fetch_add(bytes as u64, Relaxed);
    }
}

async fn send_datagrams(folder: &Path, uplinks: usize) -> Result<()> {
    let mut config = ClientConfig::new(tls(folder)?.0);
    config.transport_config(transport()?);
    let mut payloads = vec![0; PAYLOADS];
    getrandom::fill(&mut payloads).context("the kernel provides no random numbers")?;
    let payloads = Bytes::from(payloads);
    let until = Instant::now() + WARM_UP + MEASURED + Duration::from_secs(1);
    let mut senders = Vec::new();
    for uplink in 0..uplinks {
        let own = IpAddr::from([10, 1, uplink as u8, 1]);
        let socket = UdpSocket::bind((own, 0))?;
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            None,
            socket,
            Arc::new(TokioRuntime),
        )?;
        let target = SocketAddr::from(([10, 1, uplink as u8, 2], PORT));
        let connecting = connect(&endpoint, &config, target);
        senders.push(tokio::spawn(send(
            connecting.await?,
            payloads.clone(),
            until,
        )));
    }
    for sender in senders {
        sender.await??;
    }
    Ok(())
}

/// Connects to the server, which may not listen yet.
async fn connect(
    endpoint: &Endpoint,
    config: &ClientConfig,
    target: SocketAddr,
) -> Result<Connection> {
    Ok(endpoint
        .connect_with(config.clone(), target, "bench")?
        .await?)
}

/// Sends datagrams so that the connection's buffer stays full. Each is a copy of its own, as the
/// packets of an application are.
async fn send(connection: Connection, payloads: Bytes, until: Instant) -> Result<()> {
    let size = connection
        .max_datagram_size()
        .context("the peer does not support datagrams")?;
    let starts = (0..payloads.len() - size).step_by(size).cycle();
    let mut datagrams = starts.map(|start| Bytes::copy_from_slice(&payloads[start..start + size]));
    while Instant::now() < until {
        let datagram = datagrams.next().context("there are payloads")?;
        connection.send_datagram_wait(datagram).await?;
        let room = connection.datagram_send_buffer_space() / (size + 100);
        let batch: Vec<_> = datagrams.by_ref().take(room.min(256)).collect();
        connection.send_many_datagrams(&batch)?;
    }
    connection.close(0u8.into(), b"done");
    Ok(())
}
