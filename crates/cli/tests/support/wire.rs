//! A connection to the Postgres of the environment, which can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use url::Url;

/// The open connections, and whether the wire is cut.
#[derive(Default)]
struct Held {
    is_cut: bool,
    streams: Vec<TcpStream>,
}

pub struct Wire {
    url: Url,
    held: Arc<Mutex<Held>>,
}

impl Wire {
    /// Opens a wire to the store of this URL.
    pub fn to(store: &str) -> Self {
        let mut url = Url::parse(store).expect("a URL");
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let host = url.host_str().expect("a host").replace("%2F", "/");
        let server = url.port().unwrap_or(5432);
        url.set_host(Some("127.0.0.1")).expect("a host");
        url.set_port(Some(port)).expect("a port");
        let held: Arc<Mutex<Held>> = Arc::default();
        let shared = held.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut held = shared.lock().expect("nobody panics with it");
                if held.is_cut {
                    continue;
                }
                held.streams.push(stream.try_clone().expect("a second handle"));
                if host.starts_with('/') {
                    let socket = UnixStream::connect(format!("{host}/.s.PGSQL.{server}")).expect("the server");
                    let other = socket.try_clone().expect("a second handle");
                    joined(stream, socket, other);
                } else {
                    let socket = TcpStream::connect((host.as_str(), server)).expect("the server");
                    let other = socket.try_clone().expect("a second handle");
                    joined(stream, socket, other);
                }
            }
        });
        Self { url, held }
    }

    /// Returns the URL of the store through this wire.
    pub fn store(&self) -> &str {
        self.url.as_str()
    }

    pub fn cut(&self) {
        let mut held = self.held.lock().expect("nobody panics with it");
        held.is_cut = true;
        for stream in held.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.held.lock().expect("nobody panics with it").is_cut = false;
    }
}

/// Copies bytes both ways until one side ends.
fn joined<S: Read + Write + Send + 'static>(near: TcpStream, far: S, other: S) {
    let back = near.try_clone().expect("a second handle");
    std::thread::spawn(move || carried(near, far));
    std::thread::spawn(move || carried(other, back));
}

fn carried(mut from: impl Read, mut to: impl Write) {
    let mut piece = [0; 8192];
    while let Ok(read) = from.read(&mut piece)
        && read > 0
        && to.write_all(&piece[..read]).is_ok()
    {}
}
