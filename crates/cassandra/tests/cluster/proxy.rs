//! A proxy before each node, which counts, holds and loses frames of CQL by what they execute.
//!
//! Frames of version 4 of the protocol: a head of nine bytes (version, flags, stream, operation,
//! length of the body), then the body.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use terrane_cassandra::Options;

const HEAD: usize = 9;
const PREPARE: u8 = 9;
const EXECUTE: u8 = 10;
const RESULT: u8 = 8;
/// Kind of a result: a prepared statement.
const PREPARED: u32 = 4;

/// Rule for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// All pass.
    Open,
    /// This number of writes passes, not counting those of leases. Then the client is cut off for
    /// good.
    Writes(u32),
    /// The next commit of a head is lost on its way to the node.
    LoseCommit,
    /// The next commit of a head arrives, and its answer is lost.
    LoseAnswer,
    /// The same, and the client is cut off before it can ask.
    LoseAnswerAndCut,
    /// The next commit of a head is held until it is released.
    HoldCommit,
    /// The client is cut off.
    Cut,
}

struct State {
    policy: Policy,
    /// Texts of prepared statements, by their identity.
    texts: HashMap<Vec<u8>, String>,
    connections: Vec<TcpStream>,
    held: Vec<(TcpStream, Vec<u8>)>,
    /// How often a fault struck.
    faults: u32,
}

/// Proxies before all nodes.
#[derive(Clone)]
pub(crate) struct Proxies {
    state: Arc<Mutex<State>>,
    pairs: Vec<(SocketAddr, SocketAddr)>,
}

enum Fate {
    Pass,
    PassSilently,
    Lose,
    Hold,
    Cut,
}

impl Proxies {
    /// Starts a proxy for each node.
    pub(crate) fn start(nodes: &[SocketAddr]) -> Self {
        let state = Arc::new(Mutex::new(State {
            policy: Policy::Open,
            texts: HashMap::new(),
            connections: Vec::new(),
            held: Vec::new(),
            faults: 0,
        }));

        let pairs = nodes.iter().map(|&node| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let own = listener.local_addr().unwrap();
            let state = state.clone();
            thread::spawn(move || {
                for client in listener.incoming() {
                    let Ok(client) = client else { continue };
                    let is_cut = state.lock().unwrap().policy == Policy::Cut;
                    let Ok(server) = TcpStream::connect(node) else { continue };
                    if !is_cut {
                        connect(&state, &client, &server);
                    }
                }
            });
            (node, own)
        });
        let pairs = pairs.collect();
        Self { state, pairs }
    }

    /// Options with which a store is reached through the proxies alone.
    pub(crate) fn through(&self, options: Options) -> Options {
        self.pairs.iter().fold(options, |options, &(node, own)| options.address(node, own))
    }

    /// Addresses of the proxies, as contact points.
    pub(crate) fn points(&self) -> Vec<String> {
        self.pairs.iter().map(|(_, own)| own.to_string()).collect()
    }

    pub(crate) fn set(&self, policy: Policy) {
        let mut state = self.state.lock().unwrap();
        state.policy = policy;
        if policy == Policy::Cut {
            cut(&mut state);
        }
    }

    pub(crate) fn faults(&self) -> u32 {
        self.state.lock().unwrap().faults
    }

    /// Lets held frames pass.
    pub(crate) fn release(&self) -> usize {
        let held = std::mem::take(&mut self.state.lock().unwrap().held);
        for (mut server, frame) in held.iter().map(|(server, frame)| (server, frame)) {
            server.write_all(frame).unwrap();
        }
        held.len()
    }
}

fn cut(state: &mut State) {
    state.policy = Policy::Cut;
    for connection in state.connections.drain(..) {
        // It may be gone already.
        let _ = connection.shutdown(Shutdown::Both);
    }
}

fn connect(state: &Arc<Mutex<State>>, client: &TcpStream, server: &TcpStream) {
    for stream in [client, server] {
        stream.set_nodelay(true).unwrap();
        state.lock().unwrap().connections.push(stream.try_clone().unwrap());
    }
    // Streams of this connection: of statements being prepared, and of answers to lose.
    let preparing = Arc::new(Mutex::new(HashMap::<u16, String>::new()));
    let silent = Arc::new(Mutex::new(HashSet::<u16>::new()));

    let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let asked = (state.clone(), preparing.clone(), silent.clone());
    thread::spawn(move || {
        let (state, preparing, silent) = asked;
        pump(from, to, |frame, to| {
            if frame[4] == PREPARE {
                let text = String::from_utf8_lossy(&frame[HEAD + 4..]).into_owned();
                preparing.lock().unwrap().insert(stream_of(frame), text);
            }
            let fate = fate(&mut state.lock().unwrap(), frame);
            match fate {
                Fate::Pass => to.write_all(frame).is_ok(),
                Fate::PassSilently => {
                    silent.lock().unwrap().insert(stream_of(frame));
                    to.write_all(frame).is_ok()
                }
                Fate::Lose => true,
                Fate::Hold => {
                    let held = (to.try_clone().unwrap(), frame.to_vec());
                    state.lock().unwrap().held.push(held);
                    true
                }
                Fate::Cut => {
                    cut(&mut state.lock().unwrap());
                    false
                }
            }
        });
    });

    let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let state = state.clone();
    thread::spawn(move || {
        pump(from, to, |frame, to| {
            let body = &frame[HEAD..];
            let text = preparing.lock().unwrap().remove(&stream_of(frame));
            if let Some(text) = text
                && frame[4] == RESULT
                && u32::from_be_bytes(body[..4].try_into().unwrap()) == PREPARED
            {
                state.lock().unwrap().texts.insert(short_bytes(&body[4..]), text);
            }
            if silent.lock().unwrap().remove(&stream_of(frame)) {
                let mut state = state.lock().unwrap();
                // The node has answered, so the write has taken effect.
                if state.policy == Policy::LoseAnswerAndCut {
                    cut(&mut state);
                    return false;
                }
                return true;
            }
            to.write_all(frame).is_ok()
        });
    });
}

fn stream_of(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[2], frame[3]])
}

fn short_bytes(bytes: &[u8]) -> Vec<u8> {
    let length = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    bytes[2..2 + length].to_vec()
}

/// Decides about a request.
fn fate(state: &mut State, frame: &[u8]) -> Fate {
    if frame[4] != EXECUTE {
        return Fate::Pass;
    }
    let text = state.texts.get(&short_bytes(&frame[HEAD..])).cloned().unwrap_or_default();
    let is_write = !text.trim_start().starts_with("SELECT") && !text.contains(".lease ");
    let is_commit = text.contains("SET commit =");

    if is_write && let Policy::Writes(left) = state.policy {
        if left == 0 {
            state.faults += 1;
            return Fate::Cut;
        }
        state.policy = Policy::Writes(left - 1);
    }

    match state.policy {
        Policy::LoseCommit if is_commit => {
            state.policy = Policy::Open;
            state.faults += 1;
            Fate::Lose
        }
        Policy::LoseAnswer if is_commit => {
            state.policy = Policy::Open;
            state.faults += 1;
            Fate::PassSilently
        }
        Policy::LoseAnswerAndCut if is_commit => {
            state.faults += 1;
            Fate::PassSilently
        }
        Policy::HoldCommit if is_commit => {
            state.policy = Policy::Open;
            state.faults += 1;
            Fate::Hold
        }
        Policy::Cut => Fate::Cut,
        _ => Fate::Pass,
    }
}

/// Reads frames and hands them over, until either side ends.
fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    mut each: impl FnMut(&[u8], &mut TcpStream) -> bool,
) {
    let mut frame = Vec::new();
    loop {
        frame.resize(HEAD, 0);
        if from.read_exact(&mut frame).is_err() {
            break;
        }
        let length = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]) as usize;
        frame.resize(HEAD + length, 0);
        if from.read_exact(&mut frame[HEAD..]).is_err() || !each(&frame, &mut to) {
            break;
        }
    }
    // The other side may be gone first.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
