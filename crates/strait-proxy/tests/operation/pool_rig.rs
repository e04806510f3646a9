//! A proxy for a pool of servers that can fail.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lab::wait_until;
use serde_json::Value;
use strait_proxy::{Bound, Clock, Config, Inherited, Proxy};

use crate::rig::{Answer, Client, LIMIT};

/// Behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Answer,
    Hang,
    /// It answers once it has another mode.
    Hold,
    /// It answers after 40 ms.
    Slow,
    Reset,
    Garbage,
    /// Its socket is closed.
    Dead,
}

/// Time that a slow server takes.
const SLOW: Duration = Duration::from_millis(40);

/// Bytes of the response to `/long`: enough for splice.
pub(crate) const LONG: usize = 300_000;

/// Server of a pool. Its responses are not stored, but for `/stored`, `/validated` and `/targeted`.
pub(crate) struct Server {
    /// Address as the file has it.
    pub(crate) text: String,
    /// Value of X-Server in its responses: its port, or the path of its socket.
    pub(crate) name: String,
    mode: Arc<Mutex<Mode>>,
    asked: Arc<AtomicUsize>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accept = move || listener.accept().ok().map(|(stream, _)| stream);
        Self::accept(address.to_string(), address.port().to_string(), accept)
    }

    /// Starts a server at an address, with the port of another one or a free one. Its name is the
    /// address.
    pub(crate) fn at(address: &str, port: u16) -> Self {
        let listener = TcpListener::bind((address, port)).unwrap();
        let text = listener.local_addr().unwrap().to_string();
        let accept = move || listener.accept().ok().map(|(stream, _)| stream);
        Self::accept(text, address.to_owned(), accept)
    }

    /// Returns its port.
    pub(crate) fn port(&self) -> u16 {
        self.text.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap()
    }

    /// Starts a server on a Unix socket.
    pub(crate) fn on_unix(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let accept = move || listener.accept().ok().map(|(stream, _)| OwnedFd::from(stream).into());
        Self::accept(format!("unix:{}", path.display()), path.display().to_string(), accept)
    }

    fn accept(text: String, name: String, accept: impl Fn() -> Option<TcpStream> + Send + 'static) -> Self {
        let server = Self {
            text,
            name,
            mode: Arc::new(Mutex::new(Mode::Answer)),
            asked: Arc::default(),
            streams: Arc::default(),
        };
        let (mode, asked, streams) = (server.mode.clone(), server.asked.clone(), server.streams.clone());
        let name: Arc<str> = server.name.as_str().into();
        // The thread ends with the server, or with the test's process.
        thread::spawn(move || {
            while let Some(stream) = accept() {
                if *mode.lock().unwrap() == Mode::Dead {
                    return;
                }
                streams.lock().unwrap().push(stream.try_clone().unwrap());
                let (mode, asked, name) = (mode.clone(), asked.clone(), name.clone());
                thread::spawn(move || serve(&stream, &name, &mode, &asked));
            }
        });
        server
    }

    pub(crate) fn become_mode(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
        if mode == Mode::Dead {
            // Ends the thread that accepts, which closes the socket.
            drop(self.connect());
            assert!(wait_until(LIMIT, || self.connect().is_err()));
            for stream in self.streams.lock().unwrap().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn connect(&self) -> std::io::Result<OwnedFd> {
        match self.text.strip_prefix("unix:") {
            Some(path) => UnixStream::connect(path).map(Into::into),
            None => TcpStream::connect(&self.text).map(Into::into),
        }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn serve(stream: &TcpStream, name: &str, mode: &Mutex<Mode>, asked: &AtomicUsize) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let begin = head.len();
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = head[begin..].strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let _ = reader.read_exact(&mut vec![0; length]);
        asked.fetch_add(1, Ordering::SeqCst);
        let control = match head.split(' ').nth(1) {
            Some("/stored") => "max-age=10, stale-if-error=600",
            Some("/validated") => "max-age=10, stale-while-revalidate=60",
            Some("/targeted") => "no-store\r\nCDN-Cache-Control: max-age=10",
            _ => "no-store",
        };
        if *mode.lock().unwrap() == Mode::Slow {
            thread::sleep(SLOW);
        }
        if !wait_until(LIMIT, || *mode.lock().unwrap() != Mode::Hold) {
            return;
        }
        let answer = match *mode.lock().unwrap() {
            Mode::Answer | Mode::Slow if head.contains(" /unchanged ") => {
                "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
            }
            Mode::Answer | Mode::Slow => {
                let body = if head.contains(" /long ") { "x".repeat(LONG) } else { "ok".to_owned() };
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nCache-Control: {control}\r\nX-Server: {name}\r\n\r\n{body}",
                    body.len()
                )
            }
            Mode::Garbage => "\x00\x01 what?\r\n\r\n".to_owned(),
            Mode::Hang | Mode::Hold => continue,
            Mode::Reset | Mode::Dead => {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        };
        if (&mut &*stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

pub(crate) struct Rig {
    pub(crate) proxy: Proxy,
    config: Config,
    pub(crate) clock: Clock,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    /// Starts a proxy for a pool of servers, with more keys of the pool and at the top of the file.
    pub(crate) fn start(servers: &[(&Server, &str)], pool: &str, rest: &str) -> Self {
        let servers: Vec<_> =
            servers.iter().map(|(server, more)| format!("{} {more}", server.text)).collect();
        Self::of(&servers.iter().map(String::as_str).collect::<Vec<_>>(), pool, rest)
    }

    /// Like [`Self::start`], with the servers as the file has them.
    pub(crate) fn of(servers: &[&str], pool: &str, rest: &str) -> Self {
        let servers: Vec<_> = servers.iter().map(|text| format!("\"{text}\"")).collect();
        let toml = format!(
            "{rest}\nworkers = 2\ntimeouts.drain = 1\nlisten = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\n[pool.p]\nservers = [{}]\n{pool}\n[[site]]\n[[site.route]]\npool = \"p\"\n",
            servers.join(", ")
        );
        let clock = Clock::fixed(1_700_000_000);
        let config = Config::from_toml(&toml).unwrap();
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = notes.clone();
        let bound = Bound::new(&config, Inherited::default()).unwrap();
        let bound = bound.on_note(move |note| noted.lock().unwrap().push(note.to_owned()));
        Self { proxy: bound.start(clock.clone()).unwrap(), config, clock, notes }
    }

    /// Waits for a line for the operator.
    pub(crate) fn wait_for_note(&self, line: &str) {
        let is_noted = || self.notes.lock().unwrap().iter().any(|note| note == line);
        assert!(wait_until(LIMIT, is_noted), "{line}: {:?}", self.notes.lock().unwrap());
    }

    /// Reloads the same configuration.
    pub(crate) fn reload(&mut self) {
        assert!(self.proxy.reload(&self.config).unwrap().is_empty());
    }

    pub(crate) fn client(&self) -> Client {
        Client::to(self.proxy.address())
    }

    pub(crate) fn post(&self) -> Answer {
        self.ask("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
    }

    /// Sends a request to the proxy.
    pub(crate) fn ask(&self, request: &str) -> Answer {
        let mut client = self.client();
        client.send(request);
        client.answer().unwrap()
    }

    /// Returns the status of the proxy.
    pub(crate) fn admin_status(&self) -> Value {
        let mut client = Client::to(self.proxy.admin().unwrap());
        client.send("GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.answer().unwrap().json()
    }

    /// Returns the status of a server.
    pub(crate) fn status(&self, of: &Server) -> Value {
        let status = self.admin_status();
        let servers = status["servers"].as_array().unwrap().clone();
        servers.into_iter().find(|server| server["server"] == *of.text).unwrap()
    }

    /// Sends a POST to the admin address.
    pub(crate) fn change(&self, path: &str) -> Answer {
        let mut client = Client::to(self.proxy.admin().unwrap());
        client.send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        client.answer().unwrap()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut client = Client::to(self.proxy.admin().unwrap());
        client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.answer().unwrap().text()
    }
}
