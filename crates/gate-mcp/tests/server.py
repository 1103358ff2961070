"""A small MCP server for tests, on standard input and output, which also behaves as badly as it is asked to.

Every start is noted in the file `starts` of its working directory, so a test can see how often it was started, and the
requests that were given up are noted in `cancelled`.
"""

import base64
import json
import os
import subprocess
import sys
import threading
import time

ANYTHING = {"type": "object"}
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}

with open("starts", "a") as starts:
    starts.write("started\n")
with open("starts") as starts:
    START = len(starts.readlines())

if os.environ.get("FAILS"):
    print("Error: there is no key for the moon\n    at some place\nNode.js v99", file=sys.stderr, flush=True)
    sys.exit(1)
if os.environ.get("SILENT"):
    print("waiting for the moon", file=sys.stderr, flush=True)
    time.sleep(600)
if os.environ.get("STAYS"):
    # Neither it nor what it started ends with its input.
    subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)

lock = threading.Lock()
cancelled = threading.Event()
renamed = False


def send(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def tool(name, schema=ANYTHING, output=None, annotations=None, description=None):
    listed = {"name": name, "description": description or f"The tool {name}.", "inputSchema": schema}
    if output:
        listed["outputSchema"] = output
    if annotations:
        listed["annotations"] = annotations
    return listed


def tools():
    listed = [
        tool("add", NUMBERS),
        tool("sum", NUMBERS, output=SUM),
        tool("lie", output=SUM),
        tool("omit", output=SUM),
        tool("fail"),
        tool("mixed"),
        tool("hang"),
        tool("die"),
        tool("flood"),
        tool("big"),
        tool("slow"),
        tool("rename"),
        tool("complain"),
        tool("environment"),
        tool("harmless", annotations={"readOnlyHint": True, "openWorldHint": False}),
        tool("open", annotations={"openWorldHint": True}),
    ]
    if os.environ.get("CHANGES") and START > 1:
        listed[0]["description"] = "Something else by now."
    if os.environ.get("BROKEN"):
        listed.append(tool("broken", {"type": "object", "properties": {"a": {"type": "no such type"}}}))
    if os.environ.get("PREFIXED"):
        listed += [tool("small_total", NUMBERS), tool("small_add", NUMBERS)]
    if os.environ.get("ENDLESS"):
        listed = [tool(f"tool_{n}") for n in range(100)]
    return listed


def progress(token, done):
    return {"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": token, "progress": done, "total": 5, "message": f"step {done}"}}


def said(text):
    return {"content": [{"type": "text", "text": text}]}


def call(name, arguments, token):
    global renamed
    if renamed and name == "add":
        return None
    if name in ("add", "small_total", "small_add"):
        return said(str(arguments["a"] + arguments["b"]))
    if name == "sum":
        found = {"sum": arguments["a"] + arguments["b"]}
        return {**said(json.dumps(found)), "structuredContent": found}
    if name == "lie":
        return {**said("{}"), "structuredContent": {"sum": "not a number"}}
    if name == "omit":
        return said("no structure at all")
    if name == "fail":
        return {**said("the moon is in the wrong phase"), "isError": True}
    if name == "mixed":
        image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"a picture").decode()}
        link = {"type": "resource_link", "uri": "file:///notes", "name": "notes"}
        return {"content": [{"type": "text", "text": "look"}, image, link]}
    if name == "hang":
        cancelled.wait()
        return {}
    if name == "die":
        os._exit(3)
    if name == "flood":
        while True:
            with lock:
                sys.stdout.write(f"{NOTE}\n" * 100)
                sys.stdout.flush()
    if name == "big":
        return said("x" * (100 << 20))
    if name == "slow":
        for done in range(1, 6):
            time.sleep(0.4)
            send(progress(token, done))
        return said("at last")
    if name == "rename":
        renamed = True
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        return said("all tools have other names now")
    if name == "complain":
        print(f"a complaint about {os.environ.get('GIVEN')}", file=sys.stderr, flush=True)
        return said("complained")
    if name == "environment" and "value_of" in arguments:
        return said(f"{arguments['value_of']} is {os.environ.get(arguments['value_of'])}")
    if name == "environment":
        return said(" ".join(sorted(os.environ)))
    return said(name)


def answer(message):
    method, params = message["method"], message.get("params") or {}
    if method == "server/discover" and os.environ.get("NEWER"):
        return {"result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                           "ttlMs": 0, "cacheScope": "private",
                           "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "small", "version": "2"}}}}
    if method == "initialize" and os.environ.get("NEWER"):
        return {"error": {"code": -32601, "message": "Method not found"}}
    if method == "initialize":
        return {"result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {"listChanged": True}},
                           "serverInfo": {"name": "small", "version": "1"}}}
    if method == "tools/list":
        page = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": tools()}
        if os.environ.get("ENDLESS"):
            page["nextCursor"] = "on and on"
        return {"result": page}
    if method == "tools/call":
        token = (params.get("_meta") or {}).get("progressToken")
        result = call(params["name"], params.get("arguments") or {}, token)
        if result is None:
            return {"error": {"code": -32602, "message": f"Unknown tool: {params['name']}"}}
        return {"result": {"resultType": "complete", **result}}
    if method == "ping":
        return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}'


def serve(message):
    send({"jsonrpc": "2.0", "id": message["id"], **answer(message)})


def over_http():
    """Answers at a port that it prints, to whoever knows the key: in JSON, or as events if HTTP says so."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def reply(self, status, body=b""):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply(405)

        do_DELETE = do_GET

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers.get("Authorization") != "Bearer the-right-key":
                self.reply(401)
            elif "id" not in message or "method" not in message:
                self.reply(202)
            elif os.environ["HTTP"] == "events":
                self.events(message)
            else:
                self.reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)}).encode())

        def events(self, message):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            params = message.get("params") or {}
            try:
                while params.get("name") == "flood":
                    self.wfile.write(f"data: {NOTE}\n\n".encode() * 100)
                if params.get("name") == "slow":
                    token = params["_meta"]["progressToken"]
                    for done in range(1, 6):
                        time.sleep(0.4)
                        self.wfile.write(b"data: " + json.dumps(progress(token, done)).encode() + b"\r\n\r\n")
                    said_last = said("at last")
                    answered = {"result": {"resultType": "complete", **said_last}}
                else:
                    answered = answer(message)
                told = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answered})
                self.wfile.write(f"data: {told}\r\n\r\n".encode())
            except (BrokenPipeError, ConnectionResetError):
                pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(listening.server_address[1], flush=True)
    listening.serve_forever()


if os.environ.get("HTTP"):
    over_http()
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "notifications/cancelled":
        with open("cancelled", "a") as noted:
            noted.write("cancelled\n")
        cancelled.set()
    elif "id" in message and "method" in message:
        threading.Thread(target=serve, args=(message,), daemon=True).start()
if os.environ.get("STAYS"):
    time.sleep(600)
