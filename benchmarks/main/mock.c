/* A light OpenAI-compatible backend: what a gateway costs is measured in front of it.
 *
 * usage: mock PORT
 *
 * One thread, epoll, HTTP/1.1 with keep-alive and pipelining. POST /v1/chat/completions answers at once, or,
 * with "stream":true, with "max_tokens" server-sent events 10 ms apart, each an HTTP chunk of its own, then the
 * usage event if "include_usage":true was asked for, and [DONE]. GET answers what gateways probe.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, EVENT_MS = 10, BATCH = 256 };

#define HEAD "\"id\":\"chatcmpl-1\",\"created\":1700000000,\"model\":\"mock\","
#define USAGE "\"usage\":{\"prompt_tokens\":500,\"total_tokens\":516,\"completion_tokens\":16," \
              "\"prompt_tokens_details\":{\"cached_tokens\":0}}"

static const char CHAT[] =
    "{" HEAD "\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
    "\"content\":\"Light answers come from a light backend, always the same one.\"},\"logprobs\":null,"
    "\"finish_reason\":\"stop\",\"stop_reason\":null}]," USAGE "}";
static const char EVENT[] =
    "data: {" HEAD "\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},"
    "\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
static const char USAGE_EVENT[] = "data: {" HEAD "\"object\":\"chat.completion.chunk\",\"choices\":[]," USAGE "}\n\n";
static const char DONE[] = "data: [DONE]\n\n";
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1700000000,"
    "\"owned_by\":\"vllm\",\"root\":\"mock\",\"parent\":null,\"max_model_len\":32768,\"permission\":[]}]}";
static const char METRICS[] =
    "vllm:num_requests_running{engine=\"0\",model_name=\"mock\"} 0.0\n"
    "vllm:num_requests_waiting{engine=\"0\",model_name=\"mock\"} 0.0\n"
    "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock\"} 0.0\n";

/* What epoll hands back: a connection's socket, or the timer of the stream that it answers. */
struct connection;
struct source {
    int fd;
    int is_timer;
    struct connection *connection;
};
struct connection {
    struct source socket, timer;
    long events_left; /* of the stream under way */
    int include_usage;
    size_t length;
    char buffer[BUFFER + 1];
};

static int epoll;

static void watch(struct source *source) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, source->fd, &event) < 0) perror("epoll_ctl"), exit(1);
}

/* Answers are far smaller than a socket's buffer, so a short write means that the client is gone. */
static int put(struct connection *connection, const char *data, size_t length) {
    return send(connection->socket.fd, data, length, MSG_NOSIGNAL) == (ssize_t)length;
}

static int answer(struct connection *connection, const char *status, const char *type, const char *body) {
    char out[4096];
    int length = snprintf(out, sizeof out,
                          "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s",
                          status, type, strlen(body), body);
    return put(connection, out, (size_t)length);
}

static int chunk(struct connection *connection, const char *body, int last) {
    char out[1024];
    int length = snprintf(out, sizeof out, "%zx\r\n%s\r\n%s", strlen(body), body, last ? "0\r\n\r\n" : "");
    return put(connection, out, (size_t)length);
}

static int start_stream(struct connection *connection, long events) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    struct itimerspec every = {{0, EVENT_MS * 1000000}, {0, EVENT_MS * 1000000}};
    connection->events_left = events;
    connection->timer = (struct source){timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 1, connection};
    timerfd_settime(connection->timer.fd, 0, &every, NULL);
    watch(&connection->timer);
    return put(connection, head, sizeof head - 1);
}

static void stop_stream(struct connection *connection) {
    if (connection->timer.fd >= 0) close(connection->timer.fd);
    connection->timer.fd = -1;
}

static void drop(struct connection *connection) {
    stop_stream(connection);
    close(connection->socket.fd);
    connection->socket.fd = -1; /* freed after the batch: a timer of it may still be in it */
}

static int has(const char *body, size_t length, const char *text) {
    return memmem(body, length, text, strlen(text)) != NULL;
}

/* One request, whole in the buffer. Keys may be followed by a space, as Python's json writes them. */
static int serve(struct connection *connection, const char *head, const char *body, size_t length) {
    if (!strncmp(head, "POST /v1/chat/completions ", 26)) {
        if (!has(body, length, "\"stream\":true") && !has(body, length, "\"stream\": true"))
            return answer(connection, "200 OK", "application/json", CHAT);
        const char *limit = memmem(body, length, "\"max_tokens\":", 13);
        connection->include_usage = has(body, length, "\"include_usage\":true") ||
                                    has(body, length, "\"include_usage\": true");
        return start_stream(connection, limit ? strtol(limit + 13, NULL, 10) : 16);
    }
    if (!strncmp(head, "GET /v1/models ", 15)) return answer(connection, "200 OK", "application/json", MODELS);
    if (!strncmp(head, "GET /health ", 12)) return answer(connection, "200 OK", "text/plain", "");
    if (!strncmp(head, "GET /metrics ", 13)) return answer(connection, "200 OK", "text/plain", METRICS);
    if (!strncmp(head, "GET /version ", 13))
        return answer(connection, "200 OK", "application/json", "{\"version\":\"0.32.0\"}");
    if (!strncmp(head, "GET /kv_event_sources ", 22)) return answer(connection, "200 OK", "application/json", "{}");
    return answer(connection, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}");
}

/* The length of the body that follows `head`, or -1 while a chunked one is not whole. */
static long body_length(const char *head, const char *body, const char *end) {
    for (const char *line = head; line < body - 2; line = (char *)memmem(line, body - line, "\r\n", 2) + 2) {
        if (!strncasecmp(line, "content-length:", 15)) return strtol(line + 15, NULL, 10);
        if (!strncasecmp(line, "transfer-encoding:", 18)) {
            const char *last = memmem(body, end - body, "\r\n0\r\n\r\n", 7);
            return last ? last + 7 - body : -1;
        }
    }
    return 0;
}

/* Serves what is whole in the buffer; a streaming answer holds back the requests behind it. */
static int serve_buffer(struct connection *connection) {
    char *start = connection->buffer, *end = start + connection->length;
    int alive = 1;
    while (alive && connection->timer.fd < 0) {
        char *head_end = memmem(start, end - start, "\r\n\r\n", 4);
        if (!head_end) break;
        char *body = head_end + 4;
        long length = body_length(start, body, end);
        if (length < 0 || body + length > end) break;
        alive = serve(connection, start, body, (size_t)length);
        start = body + length;
    }
    connection->length = end - start;
    memmove(connection->buffer, start, connection->length);
    return alive;
}

static int on_readable(struct connection *connection) {
    ssize_t got = recv(connection->socket.fd, connection->buffer + connection->length,
                       BUFFER - connection->length, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return 1;
    if (got <= 0) return 0;
    connection->length += got;
    return serve_buffer(connection);
}

static int on_timer(struct connection *connection) {
    uint64_t due = 0;
    if (read(connection->timer.fd, &due, sizeof due) != sizeof due) return 1;
    for (; due && connection->events_left; due--, connection->events_left--)
        if (!chunk(connection, EVENT, 0)) return 0;
    if (connection->events_left) return 1;
    stop_stream(connection);
    if (connection->include_usage && !chunk(connection, USAGE_EVENT, 0)) return 0;
    return chunk(connection, DONE, 1) && serve_buffer(connection);
}

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct connection *connection = calloc(1, sizeof *connection);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection->socket = (struct source){fd, 0, connection};
        connection->timer.fd = -1;
        watch(&connection->socket);
    }
}

int main(int count, char **arguments) {
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (count != 2) return fprintf(stderr, "usage: mock PORT\n"), 2;
    address.sin_port = htons(atoi(arguments[1]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) return perror("bind"), 1;
    epoll = epoll_create1(0);
    struct source accepting = {listener, 0, NULL};
    watch(&accepting);
    for (;;) {
        struct epoll_event events[BATCH];
        struct connection *dropped[BATCH];
        int drops = 0, ready = epoll_wait(epoll, events, BATCH, -1);
        for (int i = 0; i < ready; i++) {
            struct source *source = events[i].data.ptr;
            struct connection *connection = source->connection;
            if (!connection) {
                accept_all(listener);
            } else if (connection->socket.fd >= 0 && source->fd >= 0) {
                int alive = source->is_timer ? on_timer(connection) : on_readable(connection);
                if (!alive) drop(connection), dropped[drops++] = connection;
            }
        }
        while (drops) free(dropped[--drops]);
    }
}
