//! A connection that breaks where a test wants it to.
//!
//! The proxy hands bytes to and fro between clients and a server. When it is told, it waits for a
//! request that has a mark in it, hands it on or not, and closes all connections; what the server
//! answers to that request reaches nobody.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Action on the next request that has the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    /// The server never gets it.
    Before,
    /// The server carries it out, and its answer is lost.
    After,
}

#[derive(Default)]
struct Plan {
    next: Option<(Break, Vec<u8>)>,
    /// Whether nobody can connect.
    is_shut: bool,
    is_broken: bool,
    /// The request that it broke at.
    request: Vec<u8>,
    open: Vec<TcpStream>,
}

pub(super) struct Proxy {
    port: u16,
    server_port: u16,
    plan: Arc<Mutex<Plan>>,
}

fn lock(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    pub(super) fn new(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::new(Mutex::new(Plan::default()));
        let of_listener = Arc::clone(&plan);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if lock(&of_listener).is_shut {
                    continue;
                }
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port)) else {
                    continue;
                };
                let plan = Arc::clone(&of_listener);
                thread::spawn(move || serve(&plan, client, server));
            }
        });

        Self { port, server_port, plan }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Breaks at the next request that has `mark` in it.
    pub(super) fn break_at(&self, mark: &str, how: Break) {
        let mut plan = lock(&self.plan);
        plan.is_broken = false;
        plan.next = Some((how, mark.as_bytes().to_vec()));
    }

    /// Whether it broke since it was told to.
    pub(super) fn has_broken(&self) -> bool {
        lock(&self.plan).is_broken
    }

    /// From the next break on nobody reaches the server; or everybody again.
    pub(super) fn stay_shut(&self, is_shut: bool) {
        let mut plan = lock(&self.plan);
        plan.is_shut = is_shut;
    }

    /// Hands the request that it broke at to the server, as a network may do late, and gives the
    /// answer.
    pub(super) fn deliver_late(&self) -> String {
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server_port)).unwrap();
        server.write_all(&lock(&self.plan).request).unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        server.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Breaks all connections now.
    pub(super) fn cut(&self) {
        cut(&mut lock(&self.plan));
    }
}

fn cut(plan: &mut Plan) {
    for stream in plan.open.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Hands requests on, a request being what follows on an answer, and breaks when it is time.
fn serve(plan: &Mutex<Plan>, mut client: TcpStream, mut server: TcpStream) {
    lock(plan).open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
    let mut answers = server.try_clone().unwrap();
    let mut to_client = client.try_clone().unwrap();
    let is_lost = Arc::new(Mutex::new(false));
    let of_answers = Arc::clone(&is_lost);
    let (send, receive) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = answers.read(&mut buffer) {
            if *of_answers.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = send.send(());
                return;
            }
            if to_client.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    });

    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let request = &buffer[..count];
        let next = {
            let mut plan = lock(plan);
            let has_mark = |(_, mark): &(Break, Vec<u8>)| {
                request.windows(mark.len()).any(|window| window == mark)
            };
            if plan.next.as_ref().is_some_and(has_mark) { plan.next.take() } else { None }
        };

        if let Some((how, _)) = next {
            if how == Break::After {
                *is_lost.lock().unwrap_or_else(PoisonError::into_inner) = true;
                let _ = server.write_all(request);
                // The answer has come, so the server has carried it out.
                let _ = receive.recv();
            }
            let mut plan = lock(plan);
            plan.is_broken = true;
            plan.request = request.to_vec();
            cut(&mut plan);
            return;
        }

        if server.write_all(request).is_err() {
            return;
        }
    }

    let _ = server.shutdown(Shutdown::Both);
}
