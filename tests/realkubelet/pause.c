/* SPDX-License-Identifier: Apache-2.0 */
/* The process that holds a pod's namespaces open: it waits, and ends when asked. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int how)
{
    (void)how;
    _exit(0);
}

static void reap(int how)
{
    (void)how;
    while (waitpid(-1, 0, WNOHANG) > 0) {}
}

int main(void)
{
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGCHLD, reap);
    for (;;)
        pause();
}
